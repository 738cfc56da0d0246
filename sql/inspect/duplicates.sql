-- payments of an order that stand in the facts more than once: must be empty
SELECT
    source_system,
    order_no,
    payment_no,
    COUNT(*) AS copies
FROM fact_order
GROUP BY source_system, order_no, payment_no
HAVING COUNT(*) > 1
ORDER BY copies DESC, source_system, order_no, payment_no;
