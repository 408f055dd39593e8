"""What the shop sells, and how much of it is left."""

from django.db import models


class Product(models.Model):
    """Lives in the catalogue in memory; see catalogue.py."""

    sku = models.CharField(max_length=32)
    name = models.CharField(max_length=200)
    price_cents = models.IntegerField()
    variants = models.JSONField(default=list)


class Stock(models.Model):
    """Changes all the time, so it is asked from the database for every request."""

    product_id = models.IntegerField(unique=True)
    units = models.IntegerField()
