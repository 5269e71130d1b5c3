"""The lease table and the own lease on disk, so that a node starts while no lease service answers.

Here are the file, its format, its writer and its reader. What the kernel or the firewall needs does not belong here.
"""
