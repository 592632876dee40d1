"""Links between built pages: every one leads to a file that is there, and to a place in it.

    python -m tests.links docs/_build/html

Prints what is broken, and fails if anything is.
"""

import functools
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src"}


@functools.cache
def page(path):
    return BeautifulSoup(path.read_text(), "html.parser")


@functools.cache
def places(path):
    return {tag["id"] for tag in page(path).find_all(id=True)}


def addresses(path):
    for tag in page(path).find_all(list(ADDRESSES)):
        yield tag.get(ADDRESSES[tag.name], "")


def broken(path):
    """Yield the addresses of a page that lead nowhere; those of other hosts are not followed."""
    for address in set(addresses(path)):
        parts = urlsplit(address)
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if parts.scheme or parts.netloc:
            continue
        anchor = unquote(parts.fragment) if target.suffix == ".html" else ""
        if not target.exists() or (anchor and anchor not in places(target)):
            yield address


def main():
    pages = sorted(Path(sys.argv[1]).resolve().rglob("*.html"))
    missing = [(path.name, address) for path in pages for address in broken(path)]
    for name, address in missing:
        print(f"{name}: {address}")
    print(f"{len(pages)} pages, {len(missing)} broken links")
    sys.exit(min(len(missing), 1))


if __name__ == "__main__":
    main()
