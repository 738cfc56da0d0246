INSERT INTO dim_payment_method (payment_method_key, code, label, created_by)
SELECT
    arriving.payment_method_key,
    arriving.code,
    arriving.label,
    :load_id
FROM arriving_dim_payment_method AS arriving
WHERE NOT EXISTS (
    SELECT 1
    FROM dim_payment_method AS present
    WHERE present.payment_method_key = arriving.payment_method_key
      AND present.code = arriving.code
);
