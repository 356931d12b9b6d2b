"""The papers' tables and figures by name: their runs, figures, and checked claims."""
