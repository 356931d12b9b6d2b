"""All tables and figures, by name."""

from ccfcpp.papers.reproduction import classification_items, clustering_items
from ccfcpp.papers.reproduction.items import Item

ITEMS: dict[str, Item] = clustering_items.ITEMS | classification_items.ITEMS
"""Of both papers, in their order."""
