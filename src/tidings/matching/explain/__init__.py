"""Why an event matches a filter or not, and which filters it came nearest to."""
