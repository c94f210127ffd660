"""Which system serves which subscriptions, by what an event costs."""
