"""Write the tables of docs/models.md from the families that the trainer knows and from what it refuses."""

from pathlib import Path
from typing import Final

from gymfleet_trainer.model.families import FAMILIES, REFUSED

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "models.md"
_FAMILIES: Final = "families"
_REFUSED: Final = "refused"


def models_page() -> str:
    """docs/models.md, with its tables as the code has them."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table in ((_FAMILIES, _families()), (_REFUSED, _refused())):
        begin, end = f"<!-- {name}, written by make tables -->", f"<!-- end of {name} -->"
        head, mark, rest = page.partition(begin)
        _, stop, tail = rest.partition(end)
        if not (mark and stop):
            raise LookupError(f"{PAGE} has no {begin}")
        page = f"{head}{begin}\n{table}\n{end}{tail}"
    return page


def _families() -> str:
    lines = [
        "| family | `model_type` | computed beside Llama's layers | compared with | the whole loop |",
        "|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        engines = "transformers, vLLM" if family.in_engine else "transformers"
        loop = "yes" if family.in_loop else ""
        lines.append(f"| {family.name} | `{family.model_type}` | {family.computed} | {engines} | {loop} |")
    return "\n".join(lines)


def _refused() -> str:
    lines = ["| a model with | such as | why |", "|---|---|---|"]
    lines += [f"| {one.what} | {one.example} | {one.why} |" for one in REFUSED]
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    PAGE.write_text(models_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
