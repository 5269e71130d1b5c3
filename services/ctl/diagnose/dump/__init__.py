"""What `flannelette sysdump` collects, part by part, and what it takes out.

Only what a table here names is read: no file of keys, no configuration of another program, of an environment our own
settings. Where a tool can print keys, the command that is run cannot.
"""
