"""The store on Postgres, shared by several processes."""
