"""The exact matcher: which filters each event of a batch satisfies.

matcher        `Matcher`: match, and change the subscriptions meanwhile
matches        `Matches`: the result of a match
index          an immutable index over a table of filters
engines/       how an index finds the entries that an event satisfies
change/        index versions: base, delta, removed, and merging
batch_columns  the columns of a batch of events, in the forms that matching needs
evaluation     a tree evaluated over many events
selectivity    how much of the events each constraint lets through
explain/       why an event matches or does not
analysis/      which filters of a table imply others, and where they crowd
saving/        a matcher as one file
"""
