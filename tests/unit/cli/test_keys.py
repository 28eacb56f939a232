"""`gymfleet keys new`: the key alone on stdout, and on stderr what its gateway reads."""

from pathlib import Path

import pytest
from gymfleet_cli.main import run
from gymfleet_contracts.keys import Scope, key_digest, key_id
from gymfleet_env_gateway.tenants import read_tenants

Capture = pytest.CaptureFixture[str]


def test_what_is_printed_is_a_key_and_the_file_that_knows_it(tmp_path: Path, capsys: Capture) -> None:
    assert run(["keys", "new", "--tenant", "lab", "--id", "k1", "--scope", "read", "--scope", "play"]) == 0
    said = capsys.readouterr()
    key = said.out.strip()
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.lab]\nweight = 2\n" + said.err)

    grant = read_tenants(file)["k1"]

    assert key_id(key) == "k1"
    assert grant.sha256 == key_digest(key)
    assert (grant.tenant.name, grant.tenant.weight) == ("lab", 2)
    assert grant.scopes == {Scope.READ, Scope.PLAY}
    assert key not in said.err


def test_fragments_add_up_in_one_file(tmp_path: Path, capsys: Capture) -> None:
    fragments = []
    for tenant in ("lab", "lab", "guest"):
        assert run(["keys", "new", "--tenant", tenant]) == 0
        fragments.append(capsys.readouterr().err)
    file = tmp_path / "tenants.toml"
    file.write_text("".join(fragments))

    grants = read_tenants(file).values()

    assert sorted(grant.tenant.name for grant in grants) == ["guest", "lab", "lab"]
    assert {grant.scopes for grant in grants} == {frozenset({Scope.PLAY})}
