"""The catalogue: every product as a model instance, in memory, from start-up on.

Many services keep something like it: price lists, permissions, translations, routing tables. It never changes and
none of it is garbage, yet each full collection visits every object of it.
"""

import gc
import json

from django.conf import settings

from shop.models import Product

PRODUCTS: dict[int, Product] = {}

# What a product's row holds in its JSON column.
VARIANTS = json.dumps(
    [
        {"colour": colour, "sizes": ["S", "M", "L", "XL"], "stores": [1, 2, 5, 8]}
        for colour in ("black", "white", "red", "green", "blue", "grey")
    ]
)


def load() -> None:
    """Fill the catalogue. Call once, at start-up."""
    gc.disable()  # nothing here is garbage: looking for it would only make the start slower
    try:
        for number in range(settings.CATALOGUE_PRODUCTS):
            PRODUCTS[number] = Product(
                id=number,
                sku=f"SKU-{number:07}",
                name=f"Product {number}",
                price_cents=199 + number % 10_000,
                variants=json.loads(VARIANTS),
            )
    finally:
        gc.enable()
    # Once is needed: after it the collector knows these objects as long-lived, and goes through all of them again only
    # when a quarter as many are new, or when it is told to.
    gc.collect()
