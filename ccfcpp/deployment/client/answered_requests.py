"""A client's record of answered requests, so that no request is answered twice.

Repeated answers could reveal single images, for example as the difference of two sums.
"""

from pathlib import Path

from pydantic import ValidationError

from ccfcpp.core.config import Section
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.deployment.client.rules import ForbiddenError, Rules
from ccfcpp.deployment.link.messages import MessageError, Request
from ccfcpp.engine.synchronised.contract import StepMessage
from ccfcpp.privacy.sums.messages import STAGES


class _Progress(Section):
    """Progress of a client in answering the requests of a run.

    Attributes:
        session: How often the server had been restarted, as its last request said.
        restarts: How often the client noticed a restart.
        place: Round of the last answered request, and index of its exchange in the round.
        exchanges: Names of the exchanges that were answered at this place.
        places: Number of answered places; one that is repeated after a restart counts again.
        version: Version of the model in the last request; -1 if requests have no version.
    """

    session: int = 0
    restarts: int = 0
    place: tuple[int, int] = (-1, -1)
    exchanges: tuple[str, ...] = ()
    places: int = 0
    version: int = -1


class AnsweredRequests:
    """Record of the requests that a client has answered, in one file for each run.

    Args:
        folder: Folder of the client's state.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "answered"

    def check(self, request: Request, rules: Rules, message: object) -> None:
        """Check that a request, whose payload is ``message``, may be answered now.

        Raises:
            MessageError: This request, this version of the model, or a later request was answered
                before.
            ForbiddenError: The owner does not allow so many exchanges or restarts.
        """
        before = self._read(request.run)
        after = _progress_after(before, request, message)
        if after is None:
            raise MessageError("it has answered this, or a later exchange of the run, before")
        if after.restarts > rules.restarts:
            raise ForbiddenError(
                f"the server was started again {after.restarts} times in this run, and its owner "
                f"allows {rules.restarts} (--restarts)"
            )
        if after.places > rules.most_exchanges:
            raise ForbiddenError(
                f"its owner allows {rules.most_exchanges} exchanges in a run (--most-exchanges)"
            )

    def record(self, request: Request, message: object) -> None:
        """Record a request as answered; call this before the answer is sent."""
        after = _progress_after(self._read(request.run), request, message)
        assert after is not None  # as was checked
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._path(request.run), after.model_dump_json().encode())

    def _path(self, run: str) -> Path:
        return self._folder / f"{run}.json"

    def _read(self, run: str) -> _Progress:
        path = self._path(run)
        try:
            content = path.read_bytes() if path.exists() else b"{}"
            return _Progress.model_validate_json(content)
        except ValidationError as error:
            raise UsageError(
                f"{path} is damaged, so that what was answered is not known: begin a new run"
            ) from error


def _progress_after(before: _Progress, request: Request, message: object) -> _Progress | None:
    """Return the progress after a request (payload: ``message``); None if it is not a new one."""
    place, name, now = (request.round, request.index), request.exchange, before
    if request.session > before.session:
        restarts = before.restarts + (before.places > 0)
        now = _Progress(session=request.session, restarts=restarts, places=before.places)
    here = now.exchanges if place == now.place else ()
    # A place has one exchange, and the stages of its secure sum, which are exchanges, too.
    other = name not in STAGES and any(each not in STAGES for each in here)
    if request.session < now.session or place < now.place or name in here or other:
        return None
    known, version = getattr(message, "message", message), now.version  # without keys for masks
    known = getattr(known, "system", known)  # and without what prepares vectors
    if isinstance(known, StepMessage) and known.model:
        if known.version <= version:
            return None
        version = known.version
    return now.model_copy(
        update={
            "place": place,
            "exchanges": (*here, name),
            "places": now.places + (place != now.place),
            "version": version,
        }
    )
