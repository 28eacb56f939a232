"""The kinds of goals about generated tables: each makes the calls that reach it."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.sheet.cells import address
from gymfleet_envs.sheet.tables import (
    CATEGORIES,
    CATEGORY,
    HEADER,
    LOCATION,
    LOCATIONS,
    PRICE,
    PRODUCT,
    PROFIT,
    QUANTITY,
    RATING,
)
from gymfleet_envs.sheet.tools import Workbook
from gymfleet_envs.sheet.workbook import Sheet

_SORTABLE: Final = (PRICE, QUANTITY, RATING)
_MOST_CHANGES: Final = 4


class Draft:
    """A task in the making. `call` makes a call and adds it to the plan."""

    def __init__(self, rng: random.Random, workbook: Workbook, name: str) -> None:
        self.rng = rng
        self.start = self.workbook = workbook
        self.name = name
        self.goal = ""
        self.moves: list[Move] = []

    def begin_with(self, sheet: Sheet) -> None:
        """Let the task start from another table of the same name."""
        sheets = tuple(sheet if one.name == sheet.name else one for one in self.workbook.sheets)
        self.start = self.workbook = Workbook(sheets)

    @property
    def sheet(self) -> Sheet:
        """The table as it is now."""
        return next(sheet for sheet in self.workbook.sheets if sheet.name == self.name)

    @property
    def products(self) -> list[str]:
        """The products, row by row."""
        return [row[PRODUCT] for row in self.sheet.shown()[1:]]

    def row(self, product: str) -> int:
        """Return the row of a product, from 0 on."""
        return self.products.index(product) + 1

    def some(self, count: int) -> list[str]:
        """Draw products."""
        return self.rng.sample(self.products, min(count, len(self.products)))

    def call(self, thought: str, tool: str, **arguments: Any) -> Any:
        """Make a call and return its result."""
        self.moves.append(Move.of(thought, tool, **arguments))
        self.workbook, result = self.workbook.use(tool, arguments)
        return result

    def open(self) -> None:
        """Open the table and look at it."""
        self.call(f"I open {self.name}.", "open_sheet", name=self.name)
        self.call("I look at what is there.", "get_all_values")

    def put(self, row: int, column: int, value: Any) -> None:
        """Write a cell."""
        where = address(row, column)
        self.call(f"{where} is to be {value}.", "update_cell", position=where, value=value)

    def delete(self, rows: Sequence[int]) -> None:
        """Delete rows."""
        numbers = [row + 1 for row in rows]
        self.call("These rows are to go.", "delete_batch_data", dimension="row", index_list=numbers)

    def sort(self, column: int, order: str) -> None:
        """Sort the rows below the header."""
        self.call("The header must stay where it is.", "freeze_data", dimension="rows", num=1)
        self.call("I sort the rows.", "sort_sheet_by_col", col_num=column + 1, order=order)

    def finish(self) -> None:
        """End the plan."""
        self.moves.append(Move.of("The table is as it should be.", "finish"))


def change_one(draft: Draft) -> None:
    """Write one cell."""
    (product,) = draft.some(1)
    value = draft.rng.randint(200, 400)
    draft.goal = f'In "{draft.name}", set the Quantity of {product} to {value}.'
    draft.open()
    draft.put(draft.row(product), QUANTITY, value)


def delete_one(draft: Draft) -> None:
    """Delete a row."""
    (product,) = draft.some(1)
    draft.goal = f'{product} is no longer sold. Please delete its row in "{draft.name}".'
    draft.open()
    draft.delete([draft.row(product)])


def add_one(draft: Draft) -> None:
    """Add a row at the end."""
    kind = draft.rng.choice(sorted(CATEGORIES))
    product = draft.rng.choice([name for name in CATEGORIES[kind] if name not in draft.products])
    price, rating = draft.rng.randrange(40, 2500, 5) / 100, draft.rng.randrange(20, 50) / 10
    row = [product, kind, price, draft.rng.randint(5, 200), draft.rng.choice(LOCATIONS), rating]
    draft.goal = f'Please add a row at the end of the table in "{draft.name}": {row}.'
    draft.open()
    draft.call("I put it below the last row.", "insert_rows", values_list=[row], row_idx=len(draft.products) + 2)


def sort_by(draft: Draft) -> None:
    """Sort by a column, in an order that the table does not have yet."""
    column, order = draft.rng.choice(_SORTABLE), draft.rng.choice(("asc", "des"))
    if draft.sheet.ordered(column, descending=order == "des").rows == draft.sheet.rows:
        order = "asc" if order == "des" else "des"
    words = {"asc": "ascending", "des": "descending"}
    draft.goal = (
        f'Sort the products in "{draft.name}" in {words[order]} order by {HEADER[column]}. The first row is the header.'
    )
    draft.open()
    draft.sort(column, order)


def delete_kind(draft: Draft) -> None:
    """Delete all rows with one category."""
    kinds = Counter(row[CATEGORY] for row in draft.sheet.shown()[1:])
    kind = draft.rng.choice(sorted(kinds))
    draft.goal = f'In "{draft.name}", delete all products of the category {kind}.'
    draft.open()
    draft.delete([i for i, row in enumerate(draft.sheet.shown()) if row[CATEGORY] == kind])


def change_some(draft: Draft) -> None:
    """Write several cells."""
    changes = {product: draft.rng.randint(200, 400) for product in draft.some(draft.rng.randint(2, _MOST_CHANGES))}
    table = [["Product", "Quantity"], *([product, str(value)] for product, value in changes.items())]
    draft.goal = f'Please update the quantities in "{draft.name}" with the following: {table}.'
    draft.open()
    for product, value in changes.items():
        draft.put(draft.row(product), QUANTITY, value)


def read_notes(draft: Draft) -> None:
    """Write values that notes on cells give."""
    changes = {product: draft.rng.choice(LOCATIONS) for product in draft.some(2)}
    sheet = draft.sheet
    for product, place in changes.items():
        row = draft.row(product)
        others = [name for name in LOCATIONS if name != sheet.text(row, LOCATION)]
        changes[product] = place if place in others else others[0]
        sheet = sheet.with_note(row, PRODUCT, f"Moves to {changes[product]}")
    draft.begin_with(sheet)
    named = " and ".join(f'"{product}"' for product in changes)
    draft.goal = f'In "{draft.name}", please update the Location according to the notes on the cells {named}.'
    draft.open()
    for product in changes:
        where = address(draft.row(product), PRODUCT)
        draft.call(f"I read the note of {product}.", "get_note", position=where)
    for product, place in changes.items():
        draft.put(draft.row(product), LOCATION, place)


def fill_profit(draft: Draft) -> None:
    """Fill a column with formulas, and sort by it."""
    few = draft.some(5)
    sheet = draft.sheet
    rows = [row for i, row in enumerate(sheet.rows) if i == 0 or sheet.text(i, PRODUCT) in few]
    sheet = replace(sheet, rows=tuple(rows)).with_values([(0, PROFIT, "Profit")])
    draft.begin_with(sheet)
    draft.goal = (
        f'In "{draft.name}", fill in "Profit": it is Price multiplied by Quantity. Then sort the table in descending '
        "order by Profit. The first row is the header."
    )
    draft.open()
    for row in range(1, len(rows)):
        draft.call(
            "Profit is the product of the two.", "update_cell_by_formula",
            position_list=[address(row, PRICE), address(row, QUANTITY)], result_position=address(row, PROFIT),
            operator="PRODUCT",
        )  # fmt: skip
    draft.sort(PROFIT, "des")


def change_and_sort(draft: Draft) -> None:
    """Write several cells, and sort by their column."""
    change_some(draft)
    draft.goal += " Then sort the table in descending order by Quantity. The first row is the header."
    draft.sort(QUANTITY, "des")


def keep_and_sort(draft: Draft) -> None:
    """Delete products that cost less than a limit, and sort the rest."""
    prices = sorted(float(row[PRICE]) for row in draft.sheet.shown()[1:])
    limit = prices[len(prices) // 3 + 1] if len(prices) > 3 else prices[-1]
    draft.goal = (
        f'In "{draft.name}", delete all products with a Price below {limit}. Then sort the table in ascending order by '
        "Rating. The first row is the header."
    )
    draft.open()
    draft.delete([i for i, row in enumerate(draft.sheet.shown()) if i and float(row[PRICE]) < limit])
    draft.sort(RATING, "asc")


def sum_and_sort(draft: Draft) -> None:
    """Sort, and put a sum below the table."""
    column = draft.rng.choice((PRICE, RATING))
    draft.goal = (
        f'In "{draft.name}", sort the table in descending order by {HEADER[column]}, the first row being the header. '
        "Then put the sum of all quantities into the Quantity column of the first row below the table."
    )
    draft.open()
    draft.sort(column, "des")
    last = len(draft.products)
    draft.call(
        "I add up the quantities.", "update_cell_by_formula", start_position=address(1, QUANTITY),
        end_position=address(last, QUANTITY), result_position=address(last + 1, QUANTITY), operator="SUM",
    )  # fmt: skip
