"""From a table of subscriptions to an index: built by tasks, kept in versioned files."""
