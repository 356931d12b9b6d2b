"""What clients keep from round to round of local training."""

from ccfcpp.core.randomness import Randomness
from tests.support.clustering import clients_of_sizes, small_config, small_federation


def test_moments_are_kept_within_a_phase_and_forgotten_after_it() -> None:
    def steps(*settings: str) -> dict[str, float]:
        federation = small_federation(small_config(*settings), clients_of_sizes(64))
        list(federation.run(federation.algorithm.initial_state(Randomness(0))))
        memory = federation.transport.memories.take(0)
        return {name: t.item() for name, t in memory.items() if name.endswith("step")}

    assert steps("training.rounds=0") == {"pretraining/step": 4.0}  # 2 rounds of 2 batches
    assert steps("training.rounds=3") == {"contrast/step": 6.0}
    assert steps("training.keep_optimizer=false") == {}
