"""Notifications, and how far each subscriber has come.

notifications      the mailboxes of one domain: loaded by the pipeline, read by the gateway
mailbox_loading    one load: matches into pages of groups, or rows, up to the bound of each mailbox
mailbox_grouping   groups of similar subscriptions, and the pages that their notifications share
shared_progress    how far the stream has come that small domains share
deliveries         what was acknowledged, what is tried again, what was given up
"""
