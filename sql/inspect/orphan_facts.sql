-- facts whose customer, product or payment method is in no dimension, per load: must be empty
SELECT
    fact.load_id,
    COUNT(*) FILTER (WHERE customer.customer_key IS NULL) AS without_customer,
    COUNT(*) FILTER (WHERE product.product_key IS NULL) AS without_product,
    COUNT(*) FILTER (WHERE method.payment_method_key IS NULL) AS without_payment_method
FROM fact_order AS fact
LEFT JOIN dim_customer AS customer ON customer.customer_key = fact.customer_key
LEFT JOIN dim_product AS product ON product.product_key = fact.product_key
LEFT JOIN dim_payment_method AS method ON method.payment_method_key = fact.payment_method_key
WHERE customer.customer_key IS NULL
   OR product.product_key IS NULL
   OR method.payment_method_key IS NULL
GROUP BY fact.load_id
ORDER BY fact.load_id;
