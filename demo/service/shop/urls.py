"""Routes."""

from django.urls import path

from shop import views

urlpatterns = [
    path("checkout/", views.checkout),
    path("products/<int:number>/", views.product),
    path("reports/", views.start_report),
    path("memory/", views.memory),
]
