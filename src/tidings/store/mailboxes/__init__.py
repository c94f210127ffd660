"""Notifications, and how far each subscriber has come."""
