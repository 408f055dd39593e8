"""Django's settings. What differs from run to run comes from the environment."""

import os

SECRET_KEY = "only-for-the-demo"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "shop",
        "HOST": os.environ.get("SHOP_DB_HOST", "127.0.0.1"),
        "PORT": os.environ.get("SHOP_DB_PORT", "5432"),
        # Every worker thread keeps its connection.
        "CONN_MAX_AGE": None,
    }
}

# How many products the catalogue holds in memory.
CATALOGUE_PRODUCTS = int(os.environ.get("SHOP_CATALOGUE_PRODUCTS", "1000"))
