CREATE TABLE IF NOT EXISTS fact_order (
    source_system VARCHAR NOT NULL,
    order_no VARCHAR NOT NULL,
    payment_no VARCHAR NOT NULL,
    customer_key BIGINT NOT NULL,
    product_key BIGINT NOT NULL,
    payment_method_key BIGINT NOT NULL,
    quantity INTEGER NOT NULL,
    amount NUMERIC(12, 2) NOT NULL,
    paid_amount NUMERIC(12, 2) NOT NULL,
    ordered_at TIMESTAMP WITHOUT TIME ZONE NOT NULL,
    paid_at TIMESTAMP WITHOUT TIME ZONE NOT NULL,
    load_id VARCHAR NOT NULL
);
