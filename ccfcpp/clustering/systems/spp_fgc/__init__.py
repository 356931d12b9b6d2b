"""SPP-FGC: the server joins the clients' neighbour graphs, and cuts the whole into k components."""
