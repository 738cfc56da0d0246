INSERT INTO dim_customer (customer_key, source_system, customer_no, created_by)
VALUES (0, 'unknown', 'unknown', 'schema')
ON CONFLICT DO NOTHING;
