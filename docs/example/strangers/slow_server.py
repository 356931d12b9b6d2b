"""FedAvg with a learning rate at the server."""

from dataclasses import replace

from ccfcpp.plugin import Aggregation, Method, ModelState, PositiveShare, Section, ServerState


class SlowConfig(Section):
    """The section `slow` of the configuration."""

    rate: PositiveShare = 0.5


class SlowStep(Aggregation[ServerState]):
    """The server goes a part of the way to the mean."""

    def step(self, mean: ModelState) -> ServerState:
        """Return the next state, by the mean of the clients' parameters."""
        rate, change = self.config.section(SlowConfig).rate, self.change(mean)
        moved = {name: entry + rate * change[name] for name, entry in self.before.items()}
        return replace(self.state, model=moved)


SLOW_SERVER = Method("Slow server", aggregation=SlowStep, sections={"slow": SlowConfig})
