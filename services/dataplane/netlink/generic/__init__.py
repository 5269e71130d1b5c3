"""Generic netlink: the numbers of its families.

What the messages of a family say is in the package of that family.
"""
