INSERT INTO fact_order (
    source_system,
    order_no,
    payment_no,
    customer_key,
    product_key,
    payment_method_key,
    quantity,
    amount,
    paid_amount,
    ordered_at,
    paid_at,
    load_id
)
SELECT
    source_system,
    order_no,
    payment_no,
    customer_key,
    product_key,
    payment_method_key,
    quantity,
    amount,
    paid_amount,
    ordered_at,
    paid_at,
    :load_id
FROM arriving_fact_order;
