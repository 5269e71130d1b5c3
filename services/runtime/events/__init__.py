"""The journal of a service: its recent events in memory and in a file, and the stream of them that WatchEvents is.

Each service has its own kinds of events and its own words; nothing here knows what an event is about.
"""
