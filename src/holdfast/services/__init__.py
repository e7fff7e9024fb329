"""Services: the operations on each resource; all session writes go through `journal`."""
