"""What ``scripts/benchmark.py`` measures by default can be measured."""

from ccfcpp.clustering.systems.ccfc.config import TrainingConfig
from scripts.benchmark import Setting, rounds


def test_rounds_are_those_of_published_ccfcpp_with_local_steps() -> None:
    setting = Setting("digits", 3, 300, "cpu", workers=0)
    training = setting.config.section(TrainingConfig)
    assert (training.pretraining, training.steps) == ("siamese", "local")
    seconds = rounds(setting, 1)
    assert len(seconds) == 4
    assert all(took > 0 for one in seconds.values() for took in one)
