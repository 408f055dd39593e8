"""The pages of the shop. Ordinary code: none of it knows of Underspan."""

import gc

from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse

from shop import catalogue, reports
from shop.models import Stock


def checkout(request: HttpRequest) -> HttpResponse:
    """Takes the database about 200 ms."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), pg_sleep(0.2) FROM shop_stock WHERE units > 0")
        in_stock, _ = cursor.fetchone()
    return JsonResponse({"in_stock": in_stock})


def product(request: HttpRequest, number: int) -> HttpResponse:
    """The product from memory, its stock with one quick query."""
    found = catalogue.PRODUCTS[number % len(catalogue.PRODUCTS)]
    units = Stock.objects.values_list("units", flat=True).get(product_id=number % 1000)
    return JsonResponse({"sku": found.sku, "name": found.name, "price_cents": found.price_cents, "units": units})


def start_report(request: HttpRequest) -> HttpResponse:
    """Answers at once; the report is made in the background."""
    reports.start()
    return JsonResponse({"report": "started"}, status=202)


def memory(request: HttpRequest) -> HttpResponse:
    """What the garbage collector has to look at."""
    return JsonResponse({"visible_objects": len(gc.get_objects()), "frozen_objects": gc.get_freeze_count()})
