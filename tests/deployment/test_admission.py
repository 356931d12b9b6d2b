"""What a client says of its images keeps no other client from a run."""

from typing import Any

import pytest

from ccfcpp.core.errors import UsageError
from ccfcpp.data.image_size import Sizes
from ccfcpp.deployment.link.messages import Request, Response, new_token
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import Facts, RunSpec
from ccfcpp.deployment.server.admission import Admission
from tests.support.deployment import Told

NAMES = ("a", "b", "c", "d")
SPEC = RunSpec(command="cluster", config={"method": "km"})
PLAIN: dict[str, Any] = {"samples": 10, "sizes": Sizes.of([(8, 8)] * 10, colour=False)}
UNSOUND = PLAIN["sizes"].model_copy(update={"images": 3})


class Heard(Admission):
    def __init__(self, least: int | None, *names: str) -> None:
        self.told = Told()
        super().__init__(names or NAMES, least, self.told)

    def hear(self, name: str, **facts: Any) -> None:
        request = Request(kind="hello", run=new_token(), nonce=new_token(), spec=SPEC)
        answer = Response(nonce=request.nonce, facts=Facts(**(PLAIN | facts)))
        self.record_answer(name, request, Packet(answer.to_json()))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"samples": 10**9}, "it claims 1,000,000,000 images, over 10,000,000"),
        ({"samples": 0}, "it holds no image"),
        ({"classes": tuple(map(str, range(3000)))}, "it names 3,000 classes"),
        ({"classes": tuple("x" * 190 + f"{n:04}" for n in range(1500))}, "it names 1,500 classes"),
        ({"classes": tuple("\x01" * 50 + str(n) for n in range(900))}, "it names 900 classes"),
        ({"sizes": UNSOUND}, "what it says of its images' sizes cannot be"),
    ],
)
def test_one_client_is_left_out_and_the_others_go_on(facts: Any, reason: str) -> None:
    heard = Heard(None)
    heard.hear("b", **facts)
    for name in "acd":
        assert not heard.is_complete
        heard.hear(name)
    assert heard.is_complete
    assert list(heard.admitted()) == ["a", "c", "d"]
    assert next(line for line in heard.told.lines if "cannot take part" in line).startswith(
        f"b: cannot take part: {reason}"
    )


def test_clients_with_images_of_any_size_and_colour_meet() -> None:
    heard = Heard(2)
    heard.hear("a", sizes=Sizes.of([(40, 60)] * 10, colour=True))
    assert not heard.is_complete
    heard.hear("b", skipped=2)
    assert heard.is_complete
    assert list(heard.admitted()) == ["a", "b"]
    assert heard.told.lines[-1] == "b: 10 images, 2 files left out"


VECTORS: dict[str, Any] = {"sizes": None, "length": 2}


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({}, VECTORS, "it holds vectors, and the others hold images"),
        (VECTORS, {}, "it holds images, and the others hold vectors"),
        (VECTORS, VECTORS | {"length": 3}, "its vectors have 3 columns, and those of the others 2"),
        (
            VECTORS | {"columns": ("a", "b")},
            VECTORS | {"columns": ("a", "c")},
            "its columns have other names than those of the others",
        ),
        (VECTORS, {"length": 2}, "it must say how large its images are, or how long its vectors"),
        (VECTORS, {"sizes": None}, "it must say how large its images are, or how long its vectors"),
        (VECTORS, VECTORS | {"columns": ("a",)}, "what it says of its vectors' columns cannot be"),
    ],
)
def test_samples_of_another_kind_are_refused(first: Any, second: Any, reason: str) -> None:
    heard = Heard(2)
    heard.hear("a", **first)
    heard.hear("b", **second)
    assert not heard.is_complete
    heard.hear("c", **first)
    assert heard.is_complete
    assert heard.refused == {"b"}
    assert f"b: cannot take part: {reason}" in heard.told.lines


@pytest.mark.parametrize("least", [None, 2, 3])
def test_most_clients_say_what_the_samples_are(least: int | None) -> None:
    """Whoever answers first cannot leave out all others."""
    heard = Heard(least)
    heard.hear("a", **VECTORS | {"length": 3})
    for name in "bcd":
        if not heard.is_complete:
            heard.hear(name, **VECTORS)
    assert heard.is_complete
    assert list(heard.admitted()) == ["b", "c", "d"][: least or 3]


def test_few_that_answer_first_do_not_decide_for_most() -> None:
    names = tuple("abcdefghij")
    heard = Heard(3, *names)
    for name in names:
        assert not heard.is_complete
        heard.hear(name, **VECTORS | {"length": 3 if name in "ab" else 2})
        if name == "e":
            break
    assert heard.is_complete
    assert list(heard.admitted()) == ["c", "d", "e"]
    assert any("most of them decide" in line for line in heard.told.lines)


def test_vectors_whose_columns_come_in_another_order_meet() -> None:
    heard = Heard(2)
    heard.hear("a", **VECTORS, columns=("a", "b"))
    heard.hear("b", **VECTORS, columns=("b", "a"))
    assert heard.is_complete
    assert heard.told.lines == ["a: 10 vectors", "b: 10 vectors"]


def test_a_run_that_needs_more_clients_than_can_take_part_ends() -> None:
    heard = Heard(4)
    heard.hear("a", samples=0)
    with pytest.raises(UsageError, match="1 of 4 clients cannot take part, and the run needs 4"):
        _ = heard.is_complete


def test_all_that_can_take_part_are_enough_where_no_number_is_given() -> None:
    heard = Heard(None)
    heard.hear("a", samples=0)
    heard.hear("b")
    heard.hear("c")
    assert not heard.is_complete
    heard.refuse("d", "it does not want to")
    assert heard.is_complete
    assert list(heard.admitted()) == ["b", "c"]
