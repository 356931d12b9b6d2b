"""The papers' tables and figures by name: their runs, their pictures, and what held in them."""
