"""What gunicorn loads."""

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

from shop import catalogue  # noqa: E402  (models can be used only once Django is set up)

catalogue.load()
