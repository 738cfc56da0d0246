-- orders and money taken, by payment method
SELECT
    method.code,
    method.label,
    COUNT(*) AS orders,
    SUM(fact.paid_amount) AS paid,
    CAST(AVG(fact.paid_amount) AS NUMERIC(12, 2)) AS paid_per_order
FROM fact_order AS fact
JOIN dim_payment_method AS method ON method.payment_method_key = fact.payment_method_key
GROUP BY method.code, method.label
ORDER BY paid DESC, method.code;
