INSERT INTO dim_payment_method (payment_method_key, code, label, created_by)
VALUES (0, 'unknown', 'unknown', 'schema')
ON CONFLICT DO NOTHING;
