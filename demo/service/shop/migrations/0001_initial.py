"""Two tables, and a thousand rows of stock to ask for."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Product",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("sku", models.CharField(max_length=32)),
                ("name", models.CharField(max_length=200)),
                ("price_cents", models.IntegerField()),
                ("variants", models.JSONField(default=list)),
            ],
        ),
        migrations.CreateModel(
            name="Stock",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("product_id", models.IntegerField(unique=True)),
                ("units", models.IntegerField()),
            ],
        ),
        migrations.RunSQL(
            "INSERT INTO shop_stock (product_id, units) SELECT n, n % 17 FROM generate_series(0, 999) AS n",
            "DELETE FROM shop_stock",
        ),
    ]
