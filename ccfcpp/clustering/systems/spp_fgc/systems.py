"""Entry of SPP-FGC in the table of clustering methods."""

from ccfcpp.clustering.methods import System, lazy
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.spp_fgc.config import SppConfig

SPP_FGC = System(
    title="SPP-FGC",
    sends="similarities between samples of a client, and prototypes with noise",
    kinds=("pixels",),
    make=lazy("ccfcpp.clustering.systems.spp_fgc.algorithm", "SppFgc"),
    sections={"pixels": PixelsConfig, "spp": SppConfig},
    takes=("images", "vectors"),
    summary="one-shot clustering of a graph that joins the clients' neighbour graphs",
)
