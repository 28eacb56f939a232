"""The shop's pages: the content of each, and its form as text, as rich text and as HTML."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

from gymfleet_envs.webshop.products import Product

SEARCH: Final = "Search"
BACK: Final = "Back to Search"
NEXT: Final = "Next >"
PREVIOUS: Final = "< Prev"
BUY: Final = "Buy Now"
SUB_PAGES: Final = ("Description", "Features", "Reviews")
Role = Literal["title", "instruction", "text", "button", "link", "name", "option"]


@dataclass(slots=True)
class Page:
    """The parts of a page in reading order: (role, text); an option follows the name of its group."""

    parts: list[tuple[Role, str]] = field(default_factory=list)
    has_search_bar: bool = False

    def add(self, role: Role, *texts: str) -> "Page":
        """Add parts of one role."""
        self.parts += [(role, text) for text in texts]
        return self


def search_page(instruction: str) -> Page:
    """Return the page on which an episode begins."""
    page = Page(has_search_bar=True).add("title", "WebShop")
    return page.add("instruction", "Instruction:", instruction).add("button", SEARCH)


def results_page(instruction: str, products: Sequence[Product], page_number: int, total: int) -> Page:
    """Return one page of results. As upstream, each has a next page; in the end, pages have no products."""
    page = _headed(instruction).add("text", f"Page {page_number} (Total results: {total})")
    if page_number > 1:
        page.add("button", PREVIOUS)
    page.add("button", NEXT)
    for product in products:
        page.add("link", product.asin).add("text", product.title, product.price_tag)
    return page


def item_page(instruction: str, product: Product) -> Page:
    """Return the page of a product with its options."""
    page = _headed(instruction).add("button", PREVIOUS)
    for name, values in product.options.items():
        page.add("name", name).add("option", *values)
    page.add("text", product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}")
    return page.add("button", *SUB_PAGES, BUY)


def sub_page(instruction: str, product: Product, name: str) -> Page:
    """Return the page of a product's description, features or reviews."""
    page = _headed(instruction).add("button", PREVIOUS)
    if name == "Description":
        return page.add("text", product.description)
    if name == "Features":
        return page.add("text", *product.bullets)
    for review in product.reviews:
        page.add("text", review.title, review.score, review.body)
    return page


def done_page(asin: str, options: str, reward: float) -> Page:
    """Return the page after the purchase. The template's fields for the goal stay empty, as upstream."""
    page = Page().add("text", "Thank you for shopping with us!", "Your code:", "None")
    page.add("text", "(Paste it in your MTurk interface.)", "Purchased", "asin", asin, "options", options)
    for name in ("attrs", "category", "query", "product category"):
        page.add("text", name, "None")
    page.add("text", "Target", "asin", "options", "attrs", "price upper", "instuction text", "category")
    page.add("text", "product category", "query", "Goal", "None", "Reward", "Your score (min 0.0, max 1.0)")
    return page.add("text", str(reward), "Reward Details", "None")


def clickables(page: Page) -> list[str]:
    """Return the values for `click[...]` here: buttons, then products, then options; in lower case, each once."""
    buttons: list[str] = []
    others: list[str] = []  # no page has both products and options
    for role, text in page.parts:
        if role == "button":
            buttons.append(text.lower())
        elif role == "link":
            others.append(text.lower())
        elif role == "option":
            others.append(text)
    return list(dict.fromkeys(buttons + others))


def as_text(page: Page) -> str:
    """Render a page in upstream's mode `text`."""
    return " [SEP] ".join([text.strip() for _, text in page.parts if text and text != "\n"])


def as_rich_text(page: Page, chosen: Iterable[str], seen: Iterable[str]) -> str:
    """Render a page in upstream's mode `text_rich`: buttons are marked, and clicked options are named first."""
    lines: list[str] = []
    clicked: list[str] = []
    pressed, visited = frozenset(chosen), frozenset(seen)
    for role, text in page.parts:
        if role == "button":
            lines.append(f"[button] {text} [button_]")
        elif role == "option":
            mark = "clicked button" if text in pressed else "button"
            clicked += [f"You have clicked {text}."] if text in pressed else []
            lines.append(f"  [{mark}] {text} [{mark}_]")
        elif role == "link":
            mark = "clicked button" if text in visited else "button"
            lines.append(f"\n[{mark}] {text} [{mark}_]")
        elif text not in ("", "\n"):
            lines.append(text)
    return "".join(f"{line}\n" for line in (*reversed(clicked), *lines))


def as_html(page: Page, chosen: Mapping[str, str]) -> str:
    """Render a page as a document with the ids and classes of upstream's pages, and no external resources."""
    body: list[str] = []
    group = ""
    texts = [text for role, text in page.parts if role == "instruction"]
    instruction = f'<div id="instruction-text"><h4>{"<br>".join(map(escape, texts))}</h4></div>' if texts else ""
    for role, text in page.parts:
        shown = escape(text)
        if role == "title":
            body.append(f"<h2>{shown}</h2>")
        elif role == "instruction":
            body.append(instruction)
            instruction = ""
        elif role == "button":
            bar = '<input id="search_input" name="search_query" placeholder="Search...">' if page.has_search_bar else ""
            body.append(f'{bar}<button type="submit" class="btn">{shown}</button>')
        elif role == "link":
            body.append(f'<h4><a class="product-link" href="#{shown}">{shown}</a></h4>')
        elif role == "name":
            group = text
            body.append(f"<h4>{shown}</h4>")
        elif role == "option":
            checked = " checked" if chosen.get(group) == text else ""
            body.append(f'<label><input type="radio" name="{escape(group)}" value="{shown}"{checked}>{shown}</label>')
        else:
            body.append(f"<p>{shown}</p>")
    head = '<head><meta charset="utf-8"><title>WebShop</title></head>'
    content = "\n".join(part for part in body if part)
    return f"<!DOCTYPE html>\n<html>\n{head}\n<body>\n{content}\n</body>\n</html>"


def _headed(instruction: str) -> Page:
    return Page().add("instruction", "Instruction:", instruction).add("button", BACK)
