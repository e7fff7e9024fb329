"""The interactive conversation of `holdfast chat`: input, screen, approvals, slash commands."""
