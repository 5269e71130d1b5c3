"""The cloud's routes: for backends of clouds, writes a route for each node's subnet into the cloud's routing tables.

It has no rights in the kernel, and alone has the cloud's credentials (ADR 50). Modules, from the top: main,
writer, providers/, routes. `routes` is pure; a provider's SDK is imported in its module only.
"""
