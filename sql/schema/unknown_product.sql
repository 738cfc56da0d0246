INSERT INTO dim_product (product_key, source_system, product_no, created_by)
VALUES (0, 'unknown', 'unknown', 'schema')
ON CONFLICT DO NOTHING;
