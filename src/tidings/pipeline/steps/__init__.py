"""The steps of a match: route, match, combine. Each is a function from DataFrame to DataFrame."""
