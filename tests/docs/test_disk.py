"""docs/disk.md: its tables are what the code says."""

from __future__ import annotations

import inspect

from doc_tables import quoted, table
from fastapi.routing import APIRoute

from octavo.config import EngineConfig
from octavo.server import disk_tier
from octavo.server.warming import WarmBody

PAGE = "docs/disk.md"


def test_every_setting_is_one_of_the_engines_with_its_default() -> None:
    rows = table(PAGE, "## On and off", ("Command line", "From Python", "What"))
    found = dict(quoted(row[1])[0].split("=") for row in rows)
    fields = {name: field for name, field in EngineConfig.__dataclass_fields__.items() if name.startswith("kv_disk")}
    assert {quoted(row[1])[0].split("=")[0] for row in rows} == set(fields)
    assert {name: found[name] for name in ("kv_disk_limit", "kv_disk_queue", "kv_disk")} == {
        "kv_disk_limit": f'"{fields["kv_disk_limit"].default}"',
        "kv_disk_queue": f'"{fields["kv_disk_queue"].default}"',
        "kv_disk": repr(fields["kv_disk"].default),
    }


def test_every_field_of_a_warm_line_has_its_row() -> None:
    assert {quoted(row[0])[0] for row in table(PAGE, "### Warm files", ("Field", "What"))} == set(WarmBody.model_fields)


def test_every_endpoint_has_its_row_with_its_fields() -> None:
    rows = {quoted(row[0])[0]: quoted(row[1]) for row in table(PAGE, "### Over HTTP", ("Endpoint", "Fields", "What"))}
    routes = [route for route in disk_tier.router.routes if isinstance(route, APIRoute)]
    assert set(rows) == {f"{method} {route.path}" for route in routes for method in route.methods}
    for route in routes:
        (method,) = route.methods
        asked = [
            parameter.annotation
            for parameter in inspect.signature(route.endpoint, eval_str=True).parameters.values()
            if parameter.name in ("body", "query")
        ]
        fields = list(asked[0].model_fields) if asked and asked[0] is not WarmBody else []
        assert rows[f"{method} {route.path}"] == fields, route.path
