"""The picture of a cluster: nodes, and the links between them, as text, SVG, DOT or Mermaid.

Pure: answers of the services come in, text comes out. Up to eight nodes are drawn one by one, more in groups.
"""
