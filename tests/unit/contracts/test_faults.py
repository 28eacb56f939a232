"""A refused document's faults in one line."""

import pytest
from gymfleet_contracts.faults import faults
from gymfleet_contracts.session import OpenSession, Step
from pydantic import BaseModel, ValidationError


def _refused(model: type[BaseModel], document: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(document)
    return caught.value


def test_every_fault_has_its_place_and_none_its_input() -> None:
    error = _refused(Step, {"index": "secret", "action": 3})

    told = faults(error)

    assert told == "index: Value error, must be a number; action: Input should be a valid string"
    assert "secret" not in told
    assert faults(error, most=1) == "index: Value error, must be a number"


def test_a_fault_of_the_whole_document_has_the_name_that_is_given() -> None:
    error = _refused(OpenSession, {"env": "maze", "task_id": "a", "task_index": 1})

    assert faults(error) == "Value error, give exactly one of task_id and task_index"
    assert faults(error, whole="arguments") == f"arguments: {faults(error)}"
