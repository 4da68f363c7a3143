"""The embedded engine answers as every engine must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.local import CONTEXT, VOCABULARY, local_server, make_model
from engines.suite import EngineSuite, Served

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    model, other = make_model(folder / "one"), make_model(folder / "other", seed=1)
    with local_server(model) as server:
        yield Served(
            url=server.url,
            model="tiny",
            vocabulary=VOCABULARY,
            context=CONTEXT,
            weights=str(model),
            other_weights=str(other),
        )


class TestLocalEngine(EngineSuite):
    """The engine of `prl-engine-local`, over HTTP."""
