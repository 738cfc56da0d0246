-- the twenty customers who paid most
SELECT
    customer.source_system,
    customer.customer_no,
    fact.customer_key,
    COUNT(*) AS orders,
    SUM(fact.paid_amount) AS paid
FROM fact_order AS fact
JOIN dim_customer AS customer ON customer.customer_key = fact.customer_key
GROUP BY customer.source_system, customer.customer_no, fact.customer_key
ORDER BY paid DESC, fact.customer_key
LIMIT 20;
