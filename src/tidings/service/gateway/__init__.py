"""The gateway: HTTP in front, the log and the mailboxes behind."""
